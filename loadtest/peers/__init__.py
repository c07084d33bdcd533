"""Other ways to serve the same graph, each as its users write it, to compare with."""
