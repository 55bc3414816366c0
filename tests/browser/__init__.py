"""Tests in a real Chromium: stand-alone pages, saved notebooks and JupyterLab."""
