"""Steps of several frameworks, adopted as they are."""
