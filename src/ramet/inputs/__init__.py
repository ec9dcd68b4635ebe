"""What a question comes with: texts from files, functions from Python files, tools of MCP servers."""
