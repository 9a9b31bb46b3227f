import { IconButton, type StackProps, VStack } from "@chakra-ui/react";
import type { ReactElement } from "react";
import { LuHand, LuMaximize, LuSquareDashed, LuZoomIn, LuZoomOut } from "react-icons/lu";
import { Tooltip } from "src/components";

/** What dragging in the plot does. */
export type Tool = "pan" | "box";

const FACTOR = 1.6;
const TOOLS: { tool: Tool; label: string; help: string; icon: ReactElement }[] = [
  {
    tool: "pan",
    label: "Move",
    help: "Drag to move, wheel to zoom (Shift: only X, Alt: only Y) · M",
    icon: <LuHand />,
  },
  {
    tool: "box",
    label: "Select a box",
    help: "Drag to select; Shift and drag always selects · B",
    icon: <LuSquareDashed />,
  },
];

type Props = StackProps & {
  tool: Tool;
  onTool: (tool: Tool) => void;
  onZoom: (factor: number) => void;
  onHome: () => void;
};

/** What dragging does, and zooming for who has no wheel. */
export function PlotTools({ tool, onTool, onZoom, onHome, ...props }: Props) {
  const zooms = [
    { label: "Zoom in", help: "Zoom in · +", icon: <LuZoomIn />, act: () => onZoom(FACTOR) },
    { label: "Zoom out", help: "Zoom out · −", icon: <LuZoomOut />, act: () => onZoom(1 / FACTOR) },
    { label: "Show all", help: "Show all · double click, or 0", icon: <LuMaximize />, act: onHome },
  ];
  return (
    <VStack gap={0} {...props}>
      {TOOLS.map(({ tool: each, label, help, icon }) => (
        <Tooltip key={each} content={help}>
          <IconButton
            size="xs"
            variant={tool === each ? "subtle" : "ghost"}
            colorPalette={tool === each ? "brand" : "gray"}
            aria-label={label}
            aria-pressed={tool === each}
            onClick={() => onTool(each)}
          >
            {icon}
          </IconButton>
        </Tooltip>
      ))}
      {zooms.map(({ label, help, icon, act }) => (
        <Tooltip key={label} content={help}>
          <IconButton size="xs" variant="ghost" colorPalette="gray" aria-label={label} onClick={act}>
            {icon}
          </IconButton>
        </Tooltip>
      ))}
    </VStack>
  );
}
