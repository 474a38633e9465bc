"""Charts in SVG: scales (axes), lines and dots between two axes (plots), bars of parts (bars), parallel coordinates."""
