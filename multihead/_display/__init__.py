"""Tables, figures and summaries."""
