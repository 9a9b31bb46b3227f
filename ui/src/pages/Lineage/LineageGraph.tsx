import { Box, chakra, Group, IconButton } from "@chakra-ui/react";
import { useMemo, useRef } from "react";
import { LuMaximize, LuZoomIn, LuZoomOut } from "react-icons/lu";
import { between, type Lineage } from "src/pages/Lineage/graph";
import { layOut, pathOf } from "src/pages/Lineage/layout";
import { NodeBox } from "src/pages/Lineage/NodeBox";
import { useCanvas } from "src/pages/Lineage/useCanvas";

interface Props {
  lineage: Lineage;
  selected: string | null;
  onSelect: (id: string | null) => void;
}

/** The lineage as a graph, sources above. The ways between the artifact and the selected one stand out. */
export function LineageGraph({ lineage, selected, onSelect }: Props) {
  const { nodes, edges, focus } = lineage;
  const layout = useMemo(
    () =>
      layOut(
        nodes.map(({ id }) => id),
        edges,
      ),
    [nodes, edges],
  );
  const onWay = useMemo(
    () => (selected === null || selected === focus ? null : between(focus, selected, edges)),
    [selected, focus, edges],
  );
  const frame = useRef<HTMLDivElement>(null);
  const { view, zoom, fit, handlers } = useCanvas(frame, layout.width, layout.height);
  return (
    <Box position="relative">
      <Box
        ref={frame}
        role="group"
        aria-label="Lineage graph: sources at the top, what was made from them below"
        position="relative"
        height="max(420px, calc(100vh - 290px))"
        overflow="hidden"
        borderWidth={1}
        borderRadius="md"
        cursor="grab"
        touchAction="none"
        _active={{ cursor: "grabbing" }}
        {...handlers}
      >
        <Box
          position="absolute"
          transformOrigin="0 0"
          width={`${layout.width}px`}
          height={`${layout.height}px`}
          style={{ transform: `translate(${view.x}px, ${view.y}px) scale(${view.scale})` }}
        >
          <chakra.svg
            position="absolute"
            inset={0}
            width={`${layout.width}px`}
            height={`${layout.height}px`}
            overflow="visible"
            aria-hidden
          >
            <defs>
              <marker
                id="lineage-end"
                viewBox="0 0 8 8"
                markerUnits="userSpaceOnUse"
                refX={6}
                refY={4}
                markerWidth={9}
                markerHeight={9}
                orient="auto"
              >
                <chakra.path d="M0,0L8,4L0,8z" fill="fg.subtle" />
              </marker>
            </defs>
            {layout.routes.map(({ edge, points }) => {
              const isOn = onWay === null || (onWay.has(edge.source) && onWay.has(edge.target));
              return (
                <chakra.path
                  key={`${edge.source} ${edge.target}`}
                  d={pathOf(points)}
                  fill="none"
                  stroke={onWay !== null && isOn ? "brand.solid" : "fg.subtle"}
                  strokeWidth={onWay !== null && isOn ? 2.5 : 1.4}
                  opacity={isOn ? 1 : 0.25}
                  markerEnd="url(#lineage-end)"
                />
              );
            })}
          </chakra.svg>
          {nodes.map((node) => (
            <NodeBox
              key={node.id}
              node={node}
              at={layout.places.get(node.id) ?? { x: 0, y: 0 }}
              isFocus={node.id === focus}
              isSelected={node.id === selected}
              isDim={onWay !== null && !onWay.has(node.id)}
              onSelect={() => onSelect(node.id === selected ? null : node.id)}
            />
          ))}
        </Box>
      </Box>
      <Group attached position="absolute" bottom={3} insetEnd={3}>
        <IconButton size="xs" variant="outline" bg="bg.panel" aria-label="Zoom out" onClick={() => zoom(1 / 1.25)}>
          <LuZoomOut />
        </IconButton>
        <IconButton size="xs" variant="outline" bg="bg.panel" aria-label="Zoom in" onClick={() => zoom(1.25)}>
          <LuZoomIn />
        </IconButton>
        <IconButton size="xs" variant="outline" bg="bg.panel" aria-label="Show all" onClick={fit}>
          <LuMaximize />
        </IconButton>
      </Group>
    </Box>
  );
}
