"""Tests of the views and of the widget that carries them."""
