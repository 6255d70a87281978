"""One update, a file per stage; `pipeline` gives their order."""
