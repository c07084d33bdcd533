import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;

/**
 * Java's own client with its defaults, which offer HTTP/2 with each request that has a new
 * connection. Arguments, three a request: method, URL, file of the body ("-" for none). One line a
 * request: status, protocol, request id that came back, body.
 */
public class Client {
    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < arguments.length; i += 3) {
            String method = arguments[i];
            String file = arguments[i + 2];
            HttpRequest.BodyPublisher body = file.equals("-")
                ? HttpRequest.BodyPublishers.noBody()
                : HttpRequest.BodyPublishers.ofFile(Path.of(file));
            HttpRequest.Builder builder = HttpRequest.newBuilder(URI.create(arguments[i + 1]))
                .timeout(Duration.ofSeconds(30))
                .header("x-request-id", "java-" + i / 3)
                .method(method, body);
            if (method.equals("POST")) {
                builder.header("Content-Type", "application/json");
            }
            // A client of its own for each request: a new connection, and so a new offer.
            HttpClient client = HttpClient.newHttpClient();
            HttpResponse<String> answer =
                client.send(builder.build(), HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + "\t" + answer.version() + "\t"
                + answer.headers().firstValue("x-request-id").orElse("") + "\t" + answer.body());
            // The same again on the connection that is open now.
            answer = client.send(builder.build(), HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + "\t" + answer.version() + "\t"
                + answer.headers().firstValue("x-request-id").orElse("") + "\t" + answer.body());
        }
    }
}
