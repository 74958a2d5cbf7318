"""What every benchmark writes: results, tables, plots, pages."""
