"""What is wrong with a text that is no YAML, in a line."""


def no_yaml(error: Exception) -> str:
    """What the parser (yaml.YAMLError) says, and where: its own words take several lines, with the text in them."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return f"it is no YAML: {' '.join(str(error).split())}"
    return f"it is no YAML: line {mark.line + 1}, column {mark.column + 1}: {' '.join(problem.split())}"
