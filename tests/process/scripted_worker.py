"""A worker without a data plane that behaves as its first argument says; for the supervisor.

``good``; ``kills=M/V`` dies by SIGKILL when it is to load that version, ``kills-first=M/V`` only in
slot 0; ``exits=M/V`` likewise by an exit code; ``fails=M/V`` reports it FAILED; ``stillborn`` dies
before it is ready; ``starting`` never gets ready; ``silent`` gives no sign of life once it is
ready; ``nonsense`` speaks another language; ``deaf`` routes by its first target for ever;
``late-second`` lets the first target pass in slot 1; ``bad-successor`` ends where it is to take
over from another; ``stubborn`` does not stop; ``crash`` dies by SIGSEGV when a second target comes.
"""

import os
import signal
import socket
import sys
import threading

from registry.lifecycle import State
from serving.fleet import VersionReport
from serving.target import parse_target
from serving.workers import messages
from serving.workers.messages import Report
from serving.workers.wire import Frame, FrameDecoder, encode_frame

BEAT_S = 0.05


class Script:
    def __init__(self, behaviour: str, wire: socket.socket) -> None:
        self.kind, _, name = behaviour.partition("=")
        model, _, version = name.partition("/")
        self.key = (model, int(version)) if name else None
        self.wire = wire
        self.lock = threading.Lock()
        self.end = threading.Event()
        self.targets = 0

    def say(self, kind: str, body: dict) -> None:
        with self.lock:
            self.wire.sendall(encode_frame(Frame(kind, 1, body)))

    def beat(self) -> None:
        while not self.end.wait(BEAT_S):
            self.say(messages.HEARTBEAT, {"memory_bytes": 4096, "loop_lag_s": 0.0, "stuck": ""})

    def take(self, frame: Frame) -> None:
        if frame.type == messages.HELLO:
            if self.kind == "kills-first":
                self.kind = "kills" if frame.body["slot"] == 0 else "good"
            if self.kind == "late-second":
                self.kind = "late" if frame.body["slot"] == 1 else "good"
            if self.kind == "bad-successor" and frame.body["is_patient"]:
                self.say(messages.FATAL, {"reason": "no room for two"})
                os._exit(3)
            if self.kind == "stillborn":
                self.say(messages.FATAL, {"reason": "no such library"})
                os._exit(3)
            if self.kind == "starting":
                return
            self.say(messages.READY, {})
            if self.kind == "nonsense":
                self.wire.sendall(b"GET / HTTP/1.1\r\n\r\n")
            if self.kind != "silent":
                threading.Thread(target=self.beat, daemon=True).start()
        elif frame.type == messages.TARGET:
            self.hold(frame)
        elif frame.type in (messages.STOP, messages.HAND_OVER) and self.kind != "stubborn":
            self.end.set()
            os._exit(0)

    def hold(self, frame: Frame) -> None:
        target = parse_target(frame.body)
        self.targets += 1
        if self.kind != "deaf" or self.targets == 1:
            self.say(messages.TAKEN, {"generation": target.generation})
        if self.kind == "crash" and self.targets > 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.kind == "late" and self.targets == 1:
            return
        versions = {}
        for wanted in target.versions:
            key = (wanted.model, wanted.version)
            self.say(messages.LOADING, {"model": key[0], "version": key[1]})
            if key == self.key and self.kind == "kills":
                os.kill(os.getpid(), signal.SIGKILL)
            if key == self.key and self.kind == "exits":
                os._exit(7)
            is_bad = key == self.key and self.kind == "fails"
            versions[key] = VersionReport(
                State.FAILED if is_bad else State.READY, "bad graph" if is_bad else "", 0.5, 100
            )
            self.say(messages.LOADING, {})
        self.say(messages.REPORT, Report(target.generation, versions).to_json())
        self.say(messages.LISTENING, {})


def main() -> None:
    behaviour, _listener, wire_fd, *_ = sys.argv[1:]
    wire = socket.socket(fileno=int(wire_fd))
    script, decoder = Script(behaviour, wire), FrameDecoder()
    while data := wire.recv(65536):
        for frame in decoder.feed(data):
            script.take(frame)
    os._exit(0)


if __name__ == "__main__":
    main()
