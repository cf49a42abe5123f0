"""HOW DOES A DATASET GROW DURING A RUN? Earlier datasets are found again, later ones follow at the border of epochs."""
