import { Box, type BoxProps } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import { type EChartsCoreOption, type EChartsType, init } from "src/components/chart/echarts";
import { onRestored } from "src/components/chart/restored";
import { toECharts, useChartTheme } from "src/components/chart/theme";

type Handlers = Record<string, (event: unknown) => void>;

type Props = BoxProps & {
  option: EChartsCoreOption;
  label: string;
  handlers?: Handlers;
};

/**
 * A chart of ECharts in the host's colours: it follows mode and size, and goes when its element does.
 *
 * @param option what to draw; make it with `useMemo`. It replaces what was drawn before.
 * @param label what the chart shows, in a sentence: the alternative for those who cannot see it
 * @param handlers by event name of ECharts (`click`, `datazoom`, …)
 */
export function Chart({ option, label, handlers, height = "320px", ...props }: Props) {
  const element = useRef<HTMLDivElement>(null);
  const chart = useRef<EChartsType | null>(null);
  const theme = useChartTheme();
  const latest = useRef({ handlers, theme });
  latest.current = { handlers, theme };
  const events = Object.keys(handlers ?? {})
    .sort()
    .join(" ");

  useEffect(() => {
    if (!element.current) {
      return;
    }
    const made = init(element.current, toECharts(latest.current.theme), { renderer: "canvas" });
    chart.current = made;
    const observer = new ResizeObserver(() => made.resize());
    observer.observe(element.current);
    const forget = onRestored(element.current, () => made.getZr().painter.refresh({ paintAll: true }));
    for (const name of events ? events.split(" ") : []) {
      made.on(name, (event) => latest.current.handlers?.[name]?.(event));
    }
    return () => {
      observer.disconnect();
      forget();
      made.dispose();
      chart.current = null;
    };
  }, [events]);

  useEffect(() => {
    chart.current?.setTheme(toECharts(theme));
  }, [theme]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: a chart that was made anew for other events is empty
  useEffect(() => {
    const reduced = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    chart.current?.setOption({ animation: !reduced, animationDuration: 250, ...option }, { notMerge: true });
  }, [option, events]);

  return <Box ref={element} role="img" aria-label={label} width="full" height={height} {...props} />;
}
