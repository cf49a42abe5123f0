"""WHAT DO PEOPLE LOOK AT? Audits, plans and pages; the core knows none of them."""
