import { chakra, HStack, Stack, Text } from "@chakra-ui/react";
import { formatNumber } from "src/format";
import { type Figures, residualsOf } from "src/pages/Models/figures";
import { type Evaluated, VersionBadge, versionPalette } from "src/pages/Models/versions";

const WIDTH = 420;
const HEIGHT = 26;
const INSET = 6;

/** The errors of each version: a line for nine tenths of the rows, a bar for the half in the middle, a mark at the median. */
export function ResidualBars({
  versions,
  label,
}: {
  versions: readonly (readonly [version: Evaluated, figures: Figures | null])[];
  label: string | null;
}) {
  const shown = versions.map(([version, figures]) => ({ version, quantiles: residualsOf(figures) }));
  const values = shown.flatMap(({ quantiles }) => quantiles.map(([, value]) => value));
  const far = Math.max(...values.map(Math.abs), Number.MIN_VALUE);
  const x = (value: number) => WIDTH / 2 + ((WIDTH / 2 - INSET) * value) / far;
  return (
    <Stack gap={1}>
      {shown
        .filter(({ quantiles }) => quantiles.length > 0)
        .map(({ version, quantiles }) => {
          const at = new Map(quantiles);
          const [low, lower, middle, upper, high] = [5, 25, 50, 75, 95].map((percent) => at.get(percent) ?? 0) as [
            number,
            number,
            number,
            number,
            number,
          ];
          const words = quantiles.map(([percent, value]) => `${percent}%: ${formatNumber(value)}`).join(", ");
          return (
            <HStack key={version} gap={3}>
              <VersionBadge version={version} />
              <chakra.svg
                viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
                width={`${WIDTH}px`}
                maxWidth="full"
                role="img"
                aria-label={`Residuals of ${version === null ? "the candidate" : `version ${version}`}: ${words}`}
                colorPalette={version === null ? "gray" : versionPalette(version)}
              >
                <title>{words}</title>
                <chakra.line x1={x(0)} x2={x(0)} y1={0} y2={HEIGHT} stroke="border.emphasized" />
                <chakra.line
                  x1={x(low)}
                  x2={x(high)}
                  y1={HEIGHT / 2}
                  y2={HEIGHT / 2}
                  stroke="colorPalette.solid"
                  strokeWidth={2}
                />
                <chakra.rect
                  x={x(lower)}
                  y={6}
                  width={Math.max(1, x(upper) - x(lower))}
                  height={HEIGHT - 12}
                  fill="colorPalette.muted"
                  stroke="colorPalette.solid"
                />
                <chakra.line
                  x1={x(middle)}
                  x2={x(middle)}
                  y1={4}
                  y2={HEIGHT - 4}
                  stroke="colorPalette.solid"
                  strokeWidth={3}
                />
              </chakra.svg>
            </HStack>
          );
        })}
      <Text fontSize="xs" color="fg.muted">
        {label ?? "label"} less prediction, up to ±{formatNumber(far)}: line 5 to 95%, bar 25 to 75%, mark the median
      </Text>
    </Stack>
  );
}
