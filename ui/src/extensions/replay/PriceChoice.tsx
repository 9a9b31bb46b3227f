import { Box, Button, HStack, NumberInput, Slider, Stack, Text } from "@chakra-ui/react";
import { formatNumber, metricLabel } from "airflow-hops";
import { useMemo } from "react";
import { usePolicyColors } from "src/extensions/replay/colors";
import { type Report, winsInWords, winsOf } from "src/extensions/replay/report";

const STEPS = 200;

interface Props {
  report: Report;
  price: number;
  onChange: (price: number) => void;
  /** Called when the bar is let go, and after each other change. */
  onChosen: (price: number) => void;
}

/** What a training costs, chosen on a bar that shows which policy earns most at which price. */
export function PriceChoice({ report, price, onChange, onChosen }: Props) {
  const colors = usePolicyColors(report);
  const wins = useMemo(() => winsOf(report.policies), [report.policies]);
  const last = wins.at(-2)?.to ?? 0;
  const most = 1.4 * Math.max(last, report.price) || 1;
  const share = (at: number | null) => 100 * Math.min((at ?? most) / most, 1);
  const rounded = (value: number | undefined) => Number((value ?? 0).toPrecision(6));
  const choose = (value: number) => {
    if (Number.isFinite(value) && value >= 0 && value !== price) {
      onChange(rounded(value));
      onChosen(rounded(value));
    }
  };
  return (
    <Stack gap={1} maxW="900px">
      <HStack gap={3} wrap="wrap" fontSize="sm">
        <Text id="price-label">Price of a training, in {metricLabel(report.metric)}</Text>
        <NumberInput.Root
          size="xs"
          width="28"
          min={0}
          step={most / STEPS}
          value={String(price)}
          formatOptions={{ maximumSignificantDigits: 6, useGrouping: false }}
          onValueChange={({ valueAsNumber }) => choose(valueAsNumber)}
        >
          <NumberInput.Input aria-labelledby="price-label" />
        </NumberInput.Root>
        {price !== report.price && (
          <Button size="xs" variant="outline" onClick={() => choose(report.price)}>
            {formatNumber(report.price)}, as in the report
          </Button>
        )}
      </HStack>
      <Slider.Root
        min={0}
        max={most}
        step={most / STEPS}
        value={[Math.min(price, most)]}
        onValueChange={({ value }) => onChange(rounded(value[0]))}
        onValueChangeEnd={({ value }) => onChosen(rounded(value[0]))}
        aria-label={["Price of a training"]}
      >
        <Slider.Control>
          <Slider.Track height="10px" bg="bg.muted" position="relative" overflow="hidden">
            {wins.map(({ name, to }, place) => {
              const from = share(wins[place - 1]?.to ?? 0);
              return (
                <Box
                  key={name}
                  position="absolute"
                  insetY={0}
                  title={name}
                  style={{ left: `${from}%`, width: `${share(to) - from}%`, background: colors.get(name) }}
                />
              );
            })}
          </Slider.Track>
          <Slider.Thumbs />
        </Slider.Control>
      </Slider.Root>
      <Text fontSize="sm" color="fg.muted">
        {winsInWords(wins)} A training pays if the average over the whole history gets better by more than its price.
      </Text>
    </Stack>
  );
}
