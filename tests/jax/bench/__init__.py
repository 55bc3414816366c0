"""The benches in small."""
