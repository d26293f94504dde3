"""YAML that stays as small as it looks: an alias counts as all that it stands for, and nothing holds itself."""

from __future__ import annotations

import yaml

MOST_NODES = 100_000
"""Values, lists and mappings of one text, with each alias followed; the longest shipped file has under 1,000."""


class BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which refuses a text that is nested too deeply or, aliases followed, has too many nodes."""

    def get_single_node(self) -> yaml.Node | None:
        """The text's node; YAMLError where it is refused."""
        try:
            node = super().get_single_node()
            if node is not None and (size := _size(node, {})) > MOST_NODES:
                raise yaml.constructor.ConstructorError(
                    problem=f"{size:,} values with its aliases followed; at most {MOST_NODES:,} are read"
                )
        except RecursionError:
            raise yaml.constructor.ConstructorError(problem="nested too deeply") from None
        return node


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Nodes of the tree that `node` stands for; `sizes` holds those known, 0 for one that is being counted."""
    known = sizes.get(id(node))
    if known == 0:
        raise yaml.constructor.ConstructorError(problem="a mapping or list holds itself")
    if known is None:
        sizes[id(node)] = 0
        known = sizes[id(node)] = 1 + sum(_size(below, sizes) for below in _below(node))
    return known


def _below(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
