"""Reports of every benchmark: results, tables, plots, pages."""
