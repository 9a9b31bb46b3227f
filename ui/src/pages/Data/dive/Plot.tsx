import { Box, type BoxProps } from "@chakra-ui/react";
import { type CSSProperties, type KeyboardEvent, type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import { onRestored } from "src/components/chart/restored";
import { PlotTools, type Tool } from "src/pages/Data/dive/PlotTools";
import type { Place } from "src/pages/Data/dive/picking";
import { Scene } from "src/pages/Data/dive/scene";
import type { Margins, Shown } from "src/pages/Data/dive/shown";
import { usePointer } from "src/pages/Data/dive/usePointer";
import { formatView, HOME, move, parseView, type View, zoom } from "src/pages/Data/dive/view";

const SETTLE_MS = 250;
const STEP = 0.15;
const ZOOM = 1.4;
const TOOLS_PX = 36;

/**
 * The rows as points, moved with the mouse or the keys.
 *
 * @param view what is in sight, as a text of the address
 * @param onResize gets the plot's width by height
 * @param tooltip what to say of the row under the pointer
 */
export function Plot({
  shown,
  view,
  tool,
  label,
  rowCount,
  onView,
  onTool,
  onSelect,
  onOpen,
  onClear,
  onResize,
  tooltip,
  ...props
}: Omit<BoxProps, "onSelect" | "onResize"> & {
  shown: Shown;
  view: string;
  tool: Tool;
  label: string;
  rowCount: number;
  onView: (view: string) => void;
  onTool: (tool: Tool) => void;
  onSelect: (outline: readonly Place[]) => void;
  onOpen: (row: number) => void;
  onClear: () => void;
  onResize: (aspect: number) => void;
  tooltip: (row: number) => ReactNode;
}) {
  const frame = useRef<HTMLDivElement>(null);
  const labels = useRef<HTMLCanvasElement>(null);
  const scene = useRef<Scene | null>(null);
  const timer = useRef(0);
  const sent = useRef(view);
  const latest = useRef({ onView, onResize });
  latest.current = { onView, onResize };
  const [hovered, setHovered] = useState<{ row: number; at: Place } | null>(null);
  const margins = useMargins(shown);

  const changeView = (to: View, settled = false) => {
    if (scene.current) {
      scene.current.view = to;
      scene.current.redraw();
      setHovered(null);
      window.clearTimeout(timer.current);
      timer.current = window.setTimeout(
        () => {
          sent.current = formatView(to);
          latest.current.onView(sent.current);
        },
        settled ? 0 : SETTLE_MS,
      );
    }
  };
  const { ref: points, ...pointer } = usePointer({ scene, tool, changeView, onSelect, onOpen, setHovered });

  useEffect(() => {
    if (!points.current || !labels.current) {
      return;
    }
    const made = new Scene(points.current, labels.current, (atRest) => {
      if (atRest && frame.current && frame.current.dataset.ready !== "true") {
        frame.current.dataset.ready = "true";
        performance.mark("dive:painted");
      }
    });
    scene.current = made;
    const forget = frame.current && onRestored(frame.current, () => made.redraw());
    return () => {
      forget?.();
      made.end();
      window.clearTimeout(timer.current);
      scene.current = null;
    };
  }, [points]);

  useEffect(() => {
    const element = frame.current;
    if (!element) {
      return;
    }
    const resized = () => {
      const { left, top, right, bottom } = margins;
      const [width, height] = [element.clientWidth - left - right, element.clientHeight - top - bottom];
      scene.current?.resize(width, height, margins);
      latest.current.onResize(width / Math.max(height, 1));
    };
    resized();
    const observer = new ResizeObserver(resized);
    observer.observe(element);
    return () => observer.disconnect();
  }, [margins]);

  useEffect(() => {
    if (scene.current && view !== sent.current) {
      sent.current = view;
      scene.current.view = parseView(view);
    } else if (scene.current && scene.current.view === HOME) {
      scene.current.view = parseView(view);
    }
    scene.current?.redraw();
  }, [view]);

  useEffect(() => {
    if (frame.current) {
      frame.current.dataset.ready = "false";
    }
    setHovered(null);
    scene.current?.show(shown);
  }, [shown]);

  const onKeyDown = (event: KeyboardEvent) => {
    const now = scene.current?.view;
    if (!now || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const moves: Record<string, () => void> = {
      ArrowLeft: () => changeView(move(now, STEP, 0)),
      ArrowRight: () => changeView(move(now, -STEP, 0)),
      ArrowUp: () => changeView(move(now, 0, STEP)),
      ArrowDown: () => changeView(move(now, 0, -STEP)),
      "+": () => changeView(zoom(now, ZOOM, ZOOM, 0.5, 0.5)),
      "=": () => changeView(zoom(now, ZOOM, ZOOM, 0.5, 0.5)),
      "-": () => changeView(zoom(now, 1 / ZOOM, 1 / ZOOM, 0.5, 0.5)),
      "0": () => changeView(HOME),
      Home: () => changeView(HOME),
      m: () => onTool("pan"),
      b: () => onTool("box"),
      Enter: () => {
        const row = scene.current?.pick(scene.current.width / 2, scene.current.height / 2, Number.POSITIVE_INFINITY);
        if (row !== null && row !== undefined) {
          onOpen(row);
        }
      },
      Escape: onClear,
    };
    const act = moves[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  };

  const now = () => scene.current?.view ?? HOME;
  return (
    <Box ref={frame} position="relative" overflow="hidden" data-dive="plot" data-points={rowCount} {...props}>
      <canvas
        ref={points}
        {...pointer}
        role="img"
        aria-label={label}
        tabIndex={0}
        onKeyDown={onKeyDown}
        style={{
          position: "absolute",
          left: margins.left,
          top: margins.top,
          width: `calc(100% - ${margins.left + margins.right}px)`,
          height: `calc(100% - ${margins.top + margins.bottom}px)`,
          cursor: tool === "pan" ? (hovered ? "pointer" : "grab") : "crosshair",
          touchAction: "none",
        }}
      />
      <canvas
        ref={labels}
        aria-hidden
        style={{ position: "absolute", inset: 0, width: "100%", height: "100%", pointerEvents: "none" }}
      />
      <PlotTools
        tool={tool}
        onTool={onTool}
        onZoom={(factor) => changeView(zoom(now(), factor, factor, 0.5, 0.5), true)}
        onHome={() => changeView(HOME, true)}
        position="absolute"
        right="4px"
        top="6px"
      />
      {hovered && (
        <Box
          role="tooltip"
          position="absolute"
          pointerEvents="none"
          zIndex={1}
          bg="bg.panel"
          borderWidth={1}
          borderRadius="md"
          shadow="md"
          px={2.5}
          py={1.5}
          fontSize="xs"
          maxW="xs"
          style={besides(hovered.at, margins, frame.current)}
        >
          {tooltip(hovered.row)}
        </Box>
      )}
    </Box>
  );
}

function useMargins({ x, y, columns, rows }: Shown): Margins {
  const [hasX, hasY, above, beside] = [x !== null, y !== null, columns !== null, rows !== null];
  return useMemo(
    () => ({ left: hasY ? 100 : 8, top: above ? 22 : 6, right: TOOLS_PX + (beside ? 24 : 4), bottom: hasX ? 42 : 8 }),
    [hasX, hasY, above, beside],
  );
}

/** Beside the point, on the side where there is room. */
function besides([x, y]: Place, margins: Margins, frame: HTMLElement | null): CSSProperties {
  const [width, height] = [frame?.clientWidth ?? 0, frame?.clientHeight ?? 0];
  const [left, top] = [x + margins.left, y + margins.top];
  return {
    ...(left > width / 2 ? { right: width - left + 14 } : { left: left + 14 }),
    ...(top > height / 2 ? { bottom: height - top + 6 } : { top: top + 6 }),
  };
}
