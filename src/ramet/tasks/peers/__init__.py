"""Tasks that other packages have, as tasksets; and ramet as a solver of theirs."""
