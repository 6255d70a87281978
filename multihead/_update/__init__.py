"""One update, with a file per stage; `pipeline` defines their order."""
