"""The site of the documents, beside `mkdocs.yml`: what turns a repository that reads well on GitHub into pages.

hooks      what mkdocs calls; each is a line or two
places     which page of the site a file of the repository is
links      links between files of the repository become links between pages
listing    what the sidebar lists, and what the first page of a section does
generated  pages that are written when the site is: commands, options of plugins, the API
maps       maps of packages keep their columns
diagrams   mermaid becomes pictures, light and dark
"""
