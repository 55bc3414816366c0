"""Views and the widget that carries them, read as columns and shapes."""
