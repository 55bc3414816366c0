"""TeraPipe's optimal slicer."""
