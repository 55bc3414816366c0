"""What the attached controller holds, on disk and back."""
