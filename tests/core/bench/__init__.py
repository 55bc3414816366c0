"""What benches compute from records, without running anything."""
