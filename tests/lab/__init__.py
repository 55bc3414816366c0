"""The notebooks in a real JupyterLab."""
