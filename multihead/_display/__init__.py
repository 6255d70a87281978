"""Tables, figures and summaries for people."""
