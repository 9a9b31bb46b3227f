import { Badge, Box, chakra, HStack, Icon, Text, VisuallyHidden } from "@chakra-ui/react";
import { LuHistory, LuTrash2 } from "react-icons/lu";
import { Tooltip } from "src/components";
import { formatBytes, formatNumber, formatTime, plural } from "src/format";
import { useTimezone } from "src/host";
import type { Node } from "src/pages/Lineage/graph";
import { kindOf, summaryOf } from "src/pages/Lineage/kinds";
import { NODE_HEIGHT, NODE_WIDTH, type Point } from "src/pages/Lineage/layout";
import { ServedBadge } from "src/pages/Lineage/ServedBadge";

interface Props {
  node: Node;
  at: Point;
  isFocus: boolean;
  isSelected: boolean;
  isDim: boolean;
  onSelect: () => void;
}

/** An artifact in the graph. */
export function NodeBox({ node, at, isFocus, isSelected, isDim, onSelect }: Props) {
  const kind = kindOf(node);
  const gone = node.state !== "present";
  return (
    <Tooltip content={<Numbers node={node} />}>
      <chakra.button
        type="button"
        data-node={node.id}
        position="absolute"
        left={`${at.x - NODE_WIDTH / 2}px`}
        top={`${at.y - NODE_HEIGHT / 2}px`}
        width={`${NODE_WIDTH}px`}
        height={`${NODE_HEIGHT}px`}
        aria-pressed={isSelected}
        textAlign="start"
        colorPalette={kind.palette}
        bg={gone ? "bg.subtle" : "bg.panel"}
        borderWidth={1}
        borderStyle={gone ? "dashed" : "solid"}
        borderColor={isSelected || isFocus ? "colorPalette.solid" : "border.emphasized"}
        borderInlineStartWidth="4px"
        borderInlineStartColor="colorPalette.solid"
        borderRadius="md"
        boxShadow={isSelected ? "0 0 0 2px var(--shadow-color)" : isFocus ? "md" : "xs"}
        boxShadowColor="colorPalette.solid"
        opacity={isDim ? 0.45 : 1}
        transition="opacity 0.15s"
        px={2}
        py={0.5}
        cursor="pointer"
        onClick={onSelect}
        _hover={{ bg: "bg.subtle" }}
        _focusVisible={{ outline: "2px solid", outlineColor: "brand.focusRing", outlineOffset: "2px" }}
      >
        <HStack gap={1.5} minWidth={0}>
          <Icon as={kind.icon} color="colorPalette.fg" boxSize={4} flexShrink={0} aria-hidden />
          <Text fontSize="sm" fontWeight={isFocus ? "bold" : "semibold"} truncate>
            {node.state === "hidden" ? node.kind.replaceAll("_", " ") : kind.label}
            {node.address && <VisuallyHidden> by {node.address.task_id}:</VisuallyHidden>}
          </Text>
          <HStack marginInlineStart="auto" gap={1} flexShrink={0}>
            {node.cached && <Icon as={LuHistory} color="fg.muted" boxSize={3.5} aria-label="made by an earlier run" />}
            {node.state === "deleted" && <Icon as={LuTrash2} color="fg.muted" boxSize={3.5} aria-hidden />}
            {node.served.slice(0, 1).map((mark) => (
              <ServedBadge key={mark.version} mark={mark} />
            ))}
          </HStack>
        </HStack>
        <Text fontSize="xs" color="fg.muted" truncate>
          {summaryOf(node)}
        </Text>
      </chakra.button>
    </Tooltip>
  );
}

function Numbers({ node }: { node: Node }) {
  const zone = useTimezone();
  if (node.state !== "present") {
    return <>{node.detail ?? summaryOf(node)}</>;
  }
  const metrics = Object.entries(node.metrics).slice(0, 6);
  return (
    <Box fontSize="xs">
      <Text fontWeight="semibold">{`${node.address?.dag_id} › ${node.address?.task_id}`}</Text>
      <Text>{node.created_at && formatTime(node.created_at, zone)}</Text>
      <Text>{`${formatBytes(node.size_bytes)}${node.files === null ? "" : ` in ${plural(node.files, "file")}`}`}</Text>
      {node.rows !== null && <Text>{plural(node.rows, "row")}</Text>}
      <Text fontFamily="mono">{node.fingerprint?.slice(0, 16)}</Text>
      {metrics.map(([name, value]) => (
        <Text key={name}>{`${name} ${formatNumber(value)}`}</Text>
      ))}
      {node.cached && <Badge size="xs">made by an earlier run</Badge>}
    </Box>
  );
}
