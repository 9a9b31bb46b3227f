import { useChakraContext } from "@chakra-ui/react";
import { useMemo } from "react";
import { type ColorMode, useColorMode } from "src/host";

/** The palettes of series, in order. */
export const SERIES = ["blue", "orange", "teal", "pink", "purple", "lime", "cyan", "red", "amber", "indigo"] as const;

/** The host's colours in the present mode, as a canvas takes them. */
export interface ChartTheme {
  mode: ColorMode;
  text: string;
  muted: string;
  line: string;
  background: string;
  /** Colours of series, in order; the first six are told apart by people who see colours differently, too. */
  series: readonly string[];
  /** Any colour token: `theme.color("success.solid")`; with an opacity of 0 to 1. */
  color: (token: string, opacity?: number) => string;
}

/** Reads colours of the host's tokens. They are CSS variables in oklch, which ECharts cannot read: so they are painted. */
function painter(toVariable: (token: string) => string): (token: string, opacity?: number) => string {
  const probe = document.createElement("span");
  const canvas = document.createElement("canvas");
  canvas.width = 1;
  canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const known = new Map<string, string>();
  const read = (token: string): string => {
    probe.style.color = toVariable(token);
    document.body.append(probe);
    const computed = getComputedStyle(probe).color;
    probe.remove();
    if (!context) {
      return "128,128,128";
    }
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = computed;
    context.fillRect(0, 0, 1, 1);
    return context.getImageData(0, 0, 1, 1).data.slice(0, 3).join(",");
  };
  return (token, opacity = 1) => {
    const channels = known.get(token) ?? read(token);
    known.set(token, channels);
    return opacity === 1 ? `rgb(${channels})` : `rgba(${channels},${opacity})`;
  };
}

type Token = ReturnType<typeof useChakraContext>["token"];

function makeTheme(mode: ColorMode, token: Token): ChartTheme {
  const color = painter((name) => token.var(`colors.${name}`));
  const shade = mode === "dark" ? 400 : 500;
  return {
    mode,
    text: color("fg"),
    muted: color("fg.muted"),
    line: color("border"),
    background: color("bg.panel"),
    series: SERIES.map((name) => color(`${name}.${shade}`)),
    color,
  };
}

// Reading a colour costs the browser a layout, and every row of a table may ask for one.
const made = new WeakMap<Token, Partial<Record<ColorMode, ChartTheme>>>();

/** The colours for charts, the same for all who ask; others when the host changes its mode. */
export function useChartTheme(): ChartTheme {
  const mode = useColorMode();
  const { token } = useChakraContext();
  return useMemo(() => {
    const themes = made.get(token) ?? {};
    made.set(token, themes);
    themes[mode] ??= makeTheme(mode, token);
    return themes[mode];
  }, [mode, token]);
}

/** ECharts' theme of these colours. */
export function toECharts(theme: ChartTheme): object {
  const axis = {
    axisLine: { lineStyle: { color: theme.line } },
    axisTick: { lineStyle: { color: theme.line } },
    axisLabel: { color: theme.muted, hideOverlap: true },
    nameTextStyle: { color: theme.muted },
    splitLine: { lineStyle: { color: theme.line, opacity: 0.6 } },
    minorSplitLine: { show: false },
  };
  return {
    color: theme.series,
    backgroundColor: "transparent",
    textStyle: { color: theme.text, fontFamily: getComputedStyle(document.body).fontFamily },
    legend: {
      top: 0,
      bottom: "auto",
      icon: "roundRect",
      itemWidth: 12,
      itemHeight: 8,
      textStyle: { color: theme.text },
      inactiveColor: theme.line,
      pageTextStyle: { color: theme.muted },
    },
    tooltip: {
      backgroundColor: theme.background,
      borderColor: theme.line,
      textStyle: { color: theme.text, fontSize: 12 },
      axisPointer: { lineStyle: { color: theme.muted }, crossStyle: { color: theme.muted } },
    },
    categoryAxis: { ...axis, splitLine: { show: false } },
    valueAxis: axis,
    logAxis: axis,
    timeAxis: { ...axis, splitLine: { show: false } },
    line: { symbolSize: 5, smooth: false },
    dataZoom: {
      borderColor: theme.line,
      textStyle: { color: theme.muted },
      fillerColor: theme.color("brand.solid", 0.15),
      handleStyle: { color: theme.muted },
      dataBackground: { lineStyle: { color: theme.muted }, areaStyle: { color: theme.line } },
    },
  };
}
