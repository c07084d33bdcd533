"""HTTP that both planes share: protocol, server, errors, documentation pages."""
