"""Reports as pages: one HTML file each, which loads nothing, fits phones, and can be read without seeing or a mouse."""
