"""Objects behind http and https."""
