"""HOW IS IT SHOWN? Figures and pages of audits, plans and traces."""
