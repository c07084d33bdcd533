"""What the benches share: servers on a core, load on another, rounds, claims and their verdicts."""
