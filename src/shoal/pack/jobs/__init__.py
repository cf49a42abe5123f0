"""WHERE DOES THE WORK RUN? A packing as a job of units: in processes of this machine, or by engines."""
