"""The console: the page at `/`. Its sources in src/ are built with Vite into dist/, which ships with the package.

`make console` builds it. The Python of this folder only reads dist/; the page uses the public routes of the service.
"""
