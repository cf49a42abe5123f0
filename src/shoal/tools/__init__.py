"""WHAT DO PEOPLE LOOK AT? Audits, plans and pages."""
