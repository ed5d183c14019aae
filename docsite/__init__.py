"""The documentation site: turns a repository that reads well on GitHub into pages, which Zensical builds.

__main__   writes every page as Markdown, runs Zensical, and lists the versions of a site
places     which page of the site a file of the repository is
links      links between files of the repository become links between pages
listing    what the sidebar lists, what the first page of a section does, and the versions of a site
generated  pages that are generated from what is installed: commands, options of plugins, the API
maps       maps of packages keep their columns
diagrams   mermaid becomes pictures, light and dark
"""
