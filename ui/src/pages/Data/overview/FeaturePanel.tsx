import { Box, CloseButton, HStack, IconButton, Stack, Text } from "@chakra-ui/react";
import { useEffect } from "react";
import { LuChevronDown, LuChevronUp } from "react-icons/lu";
import { AppLink, ERROR, ErrorAlert, LoadingBox } from "src/components";
import { formatNumber, formatPValue } from "src/format";
import { useShownBelow } from "src/hooks/useShownBelow";
import { measureName } from "src/measures";
import { DetailChart } from "src/pages/Data/overview/DetailChart";
import { FiguresTable, QuantilesTable, ValuesTable } from "src/pages/Data/overview/DetailTables";
import type { Shown } from "src/pages/Data/overview/datasets";
import type { Distances, FeatureRow } from "src/pages/Data/overview/features";
import { useDetails, useDistances } from "src/pages/Data/overview/queries";
import { schemaPath, skewPath } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

/** All that is known of one feature, beside the table. */
export function FeaturePanel({
  row,
  shown,
  weighted,
  formatValue = (value) => formatNumber(value, 6),
  onClose,
  onPrevious,
  onNext,
}: {
  row: FeatureRow;
  shown: readonly Shown[];
  weighted: boolean;
  /** Of the feature's values: times, where they are. */
  formatValue?: (value: number) => string;
  onClose: () => void;
  onPrevious: (() => void) | undefined;
  onNext: (() => void) | undefined;
}) {
  const dagId = useDagId();
  const panel = useShownBelow(row.name, "64em");
  const holding = shown.filter((_, dataset) => row.at[dataset] !== -1);
  const queries = useDetails(holding, row.name, weighted);
  const failed = queries.find(({ error }) => error !== null);
  const sides = holding.flatMap((dataset, index) => {
    const detail = queries[index]?.data;
    return detail ? [{ dataset, detail }] : [];
  });
  useEffect(() => {
    const close = (event: KeyboardEvent) => event.key === "Escape" && !event.defaultPrevented && onClose();
    window.addEventListener("keydown", close);
    return () => window.removeEventListener("keydown", close);
  }, [onClose]);
  return (
    <Stack
      ref={panel}
      as="section"
      aria-label={`Feature ${row.name}`}
      gap={4}
      borderWidth={1}
      borderRadius="md"
      p={4}
      maxHeight="calc(100vh - 190px)"
      overflowY="auto"
      css={{ "& > *": { flexShrink: 0 } }}
    >
      <HStack gap={1} align="flex-start">
        <Box flex={1} minWidth={0}>
          <Text as="h2" fontSize="lg" fontWeight="semibold" overflowWrap="anywhere">
            {row.name}
          </Text>
          <HStack gap={3} fontSize="sm" color="fg.muted">
            {row.type.toLowerCase()}
            <AppLink to={schemaPath(dagId, { feature: row.name })}>Schema</AppLink>
            <AppLink to={skewPath(dagId, { feature: row.name })}>Skew</AppLink>
          </HStack>
        </Box>
        <Step label="Previous feature" onClick={onPrevious} icon={<LuChevronUp />} />
        <Step label="Next feature" onClick={onNext} icon={<LuChevronDown />} />
        <CloseButton size="xs" aria-label="Close" onClick={onClose} />
      </HStack>
      {failed && <ErrorAlert error={failed.error} retry={() => void failed.refetch()} />}
      {sides.length < holding.length ? (
        !failed && <LoadingBox height="420px" />
      ) : (
        <>
          <DetailChart name={row.name} type={row.type} kind={row.kind} sides={sides} formatValue={formatValue} />
          <Apart shown={shown} name={row.name} />
          <FiguresTable sides={sides} formatValue={formatValue} />
          {row.kind === "num" && <QuantilesTable sides={sides} formatValue={formatValue} />}
          {row.kind === "string" && <ValuesTable sides={sides} />}
        </>
      )}
    </Stack>
  );
}

function Step({ label, icon, onClick }: { label: string; icon: React.ReactNode; onClick: (() => void) | undefined }) {
  return (
    <IconButton
      size="xs"
      variant="ghost"
      colorPalette="gray"
      aria-label={label}
      title={label}
      disabled={!onClick}
      onClick={onClick}
    >
      {icon}
    </IconButton>
  );
}

/** How far each of the other data sets is from the first, by every measure of the field. */
function Apart({ shown, name }: { shown: readonly Shown[]; name: string }) {
  const queries = useDistances(shown, { feature: name });
  const [first, ...others] = shown;
  return (
    <Stack gap={2} fontSize="sm">
      {others.map((other, index) => {
        const data = queries[index]?.data;
        return (
          first && data && data.names.length > 0 && <Pair key={other.index} first={first} other={other} data={data} />
        );
      })}
    </Stack>
  );
}

function Pair({ first, other, data }: { first: Shown; other: Shown; data: Distances }) {
  const judged = data.measures[0];
  const unjudged = Object.entries(data.every).filter(([measure]) => measure !== judged);
  return (
    <Box>
      <Text color={data.drifted[0] ? ERROR : undefined}>
        From {first.label} to {other.label}
        {judged && (
          <>
            : {measureName(judged)} {formatNumber(data.scores[0], 3)}
            {data.thresholds[0] !== null && `, threshold ${formatNumber(data.thresholds[0], 3)}`}
            {data.p_values[0] !== null && `, ${formatPValue(data.p_values[0])}`}
            {data.reported && ` (from the skew report)${data.drifted[0] ? ". Drifted: the Skew page says why" : ""}`}
          </>
        )}
      </Text>
      <Text color="fg.muted">
        {unjudged.map(([measure, score]) => `${measureName(measure)} ${formatNumber(score, 3)}`).join(" · ")}
      </Text>
    </Box>
  );
}
