import { Grid, HStack, Text } from "@chakra-ui/react";
import { type ReactNode, useMemo } from "react";
import { Amount, Choice, Empty, Toggle } from "src/components";
import { useQueryFlag, useQueryParam } from "src/hooks/useQueryState";
import { CurveChart, type CurveLook, type CurveRun } from "src/pages/Runs/CurveChart";
import { type Curve, figuresOf, type XAxis } from "src/pages/Runs/curves";

const AXES = [
  { value: "step", label: "step or epoch" },
  { value: "relative", label: "time since the start" },
  { value: "time", label: "wall time" },
];

interface Props {
  curves: readonly Curve[];
  runs: readonly CurveRun[];
  legend?: ReactNode;
}

/** A chart for each figure of some runs, and how they are drawn: axis, smoothing, logarithm. */
export function CurveGrid({ curves, runs, legend }: Props) {
  const [axis, setAxis] = useQueryParam("x", "step");
  const [smoothing, setSmoothing] = useQueryParam("smooth", "0");
  const [log, setLog] = useQueryFlag("log");
  const [enlarged, setEnlarged] = useQueryParam("figure");
  const figures = useMemo(() => {
    const all = figuresOf(curves);
    return [...all.filter(({ name }) => name === enlarged), ...all.filter(({ name }) => name !== enlarged)];
  }, [curves, enlarged]);
  const weight = Math.min(Math.max(Number(smoothing) || 0, 0), 0.99);
  const look = useMemo<CurveLook>(
    () => ({ axis: axis === "relative" || axis === "time" ? axis : ("step" satisfies XAxis), smoothing: weight, log }),
    [axis, weight, log],
  );
  if (figures.length === 0) {
    return <Empty title="No curves yet">A metric needs at least two logged values.</Empty>;
  }
  return (
    <>
      <HStack gap={5} mb={2} wrap="wrap">
        <Choice label="X" value={look.axis} values={AXES} onChange={setAxis} />
        <HStack gap={2} width="190px">
          <Text fontSize="sm" color="fg.muted">
            Smoothing
          </Text>
          <Amount
            size="sm"
            flex={1}
            min={0}
            max={0.99}
            step={0.01}
            label="Smoothing"
            value={weight}
            onChange={(value) => setSmoothing(String(value))}
          />
          <Text fontSize="sm" fontVariantNumeric="tabular-nums">
            {weight.toFixed(2)}
          </Text>
        </HStack>
        <Toggle label="Log y" checked={log} onChange={setLog} />
        <Text fontSize="xs" color="fg.muted" marginInlineStart="auto">
          Shift and wheel to zoom, drag to move
        </Text>
      </HStack>
      {legend}
      <Grid templateColumns="repeat(auto-fill, minmax(min(340px, 100%), 1fr))" gap={3}>
        {figures.map((figure) => (
          <CurveChart
            key={figure.name}
            figure={figure}
            runs={runs}
            look={look}
            large={figure.name === enlarged}
            onToggle={() => setEnlarged(figure.name === enlarged ? "" : figure.name)}
          />
        ))}
      </Grid>
    </>
  );
}
