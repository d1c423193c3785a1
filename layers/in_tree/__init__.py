"""Text that the backport puts into vLLM's tree, kept as modules so that tests run it.

``normport.tools.backport`` copies functions from here by their names: what is tested
here is what the patch contains. The folder follows vLLM's ruff configuration.
"""
