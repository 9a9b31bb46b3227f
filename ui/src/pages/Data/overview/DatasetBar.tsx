import { Box, Button, CloseButton, HStack, Skeleton, Text } from "@chakra-ui/react";
import type { UseQueryResult } from "@tanstack/react-query";
import { LuChevronDown } from "react-icons/lu";
import { AppLink, CheckMenu, ErrorAlert, Time } from "src/components";
import { formatCount, plural, shortRun } from "src/format";
import { useQuery } from "src/hooks/useQueryState";
import { AddData } from "src/pages/Data/overview/AddData";
import { Swatch } from "src/pages/Data/overview/cells";
import {
  datasetPalette,
  formatDataset,
  INK,
  type Listing,
  MAX_SHOWN,
  parseDataset,
  type Shown,
} from "src/pages/Data/overview/datasets";
import { type ArtifactRef, airflowTaskPath, formatArtifact } from "src/routes";

interface Props {
  refs: readonly ArtifactRef[];
  listings: readonly UseQueryResult<Listing, unknown>[];
  shown: readonly Shown[];
}

/** The legend: artifacts, and which of their data sets are shown; more can be added. */
export function DatasetBar({ refs, listings, shown }: Props) {
  const [, change] = useQuery();
  /** Changes artifacts and data sets of the address; without any there, those that are shown. */
  const show = (next: (artifacts: string[], datasets: string[]) => { artifact: string[]; show: string[] }) =>
    change((query) => ({
      ...next(
        query.has("artifact") ? query.getAll("artifact") : refs.map(formatArtifact),
        query.has("show") ? query.getAll("show") : shown.map(formatDataset),
      ),
      split: null,
    }));
  const toggle = (ref: ArtifactRef, name: string, slice: string | null) =>
    show((artifacts, datasets) => {
      const text = formatDataset({ artifact: artifacts.indexOf(formatArtifact(ref)), name, slice });
      const without = datasets.filter((each) => each !== text);
      return { artifact: artifacts, show: without.length < datasets.length ? without : [...datasets, text] };
    });
  const remove = (ref: ArtifactRef) =>
    show((artifacts, datasets) => {
      const index = artifacts.indexOf(formatArtifact(ref));
      const others = datasets.flatMap((each) => parseDataset(each) ?? []).filter(({ artifact }) => artifact !== index);
      return {
        artifact: artifacts.filter((_, other) => other !== index),
        show: others.map((each) =>
          formatDataset(each.artifact > index ? { ...each, artifact: each.artifact - 1 } : each),
        ),
      };
    });
  const add = (ref: ArtifactRef, name: string, alone: boolean) => {
    const text = formatArtifact(ref);
    if (alone) {
      change({ artifact: [text], show: null, split: null });
      return;
    }
    show((before, datasets) => {
      const artifacts = before.includes(text) ? before : [...before, text];
      const added = formatDataset({ artifact: artifacts.indexOf(text), name, slice: null });
      return { artifact: artifacts, show: [...datasets.slice(0, MAX_SHOWN - 1), added] };
    });
  };
  return (
    <HStack gap={2} wrap="wrap" align="stretch" flex={1} role="group" aria-label="Data sets">
      {refs.map((ref, index) => {
        const listing = listings[index];
        return (
          <HStack key={formatArtifact(ref)} gap={2} borderWidth={1} borderRadius="md" px={3} py={1.5} wrap="wrap">
            <Origin reference={ref} listing={listing?.data} />
            {listing?.isError ? (
              <ErrorAlert error={listing.error} retry={() => void listing.refetch()} />
            ) : listing?.data === undefined ? (
              <Skeleton width="160px" height="24px" />
            ) : (
              listing.data.datasets.map((dataset) => (
                <HStack key={dataset.name} gap={0}>
                  <Chip
                    name={dataset.name}
                    rows={dataset.rows}
                    shown={shown.find(
                      (each) => each.artifact === index && each.name === dataset.name && each.slice === null,
                    )}
                    full={shown.length >= MAX_SHOWN}
                    last={shown.length === 1}
                    onClick={() => toggle(ref, dataset.name, null)}
                  />
                  {Object.keys(dataset.slices).length > 0 && (
                    <Slices
                      dataset={dataset}
                      taken={shown.filter((each) => each.artifact === index && each.name === dataset.name)}
                      full={shown.length >= MAX_SHOWN}
                      onToggle={(slice) => toggle(ref, dataset.name, slice)}
                    />
                  )}
                </HStack>
              ))
            )}
            {refs.length > 1 && <CloseButton size="2xs" aria-label="Remove" onClick={() => remove(ref)} />}
          </HStack>
        );
      })}
      <AddData onAdd={add} />
      {shown
        .filter(({ slice }) => slice !== null)
        .map((each) => (
          <Button
            key={formatDataset(each)}
            size="xs"
            variant="ghost"
            colorPalette="gray"
            alignSelf="center"
            title="Remove this slice"
            onClick={() => toggle(each.ref, each.name, each.slice)}
          >
            <Swatch index={each.index} /> {each.label} ×
          </Button>
        ))}
    </HStack>
  );
}

/** Whose statistics these are: the run, when it was, and the times of its rows. */
function Origin({ reference, listing }: { reference: ArtifactRef; listing: Listing | undefined }) {
  const days = listing?.window?.map((time) => time?.slice(0, 10) ?? "…").join(" – ");
  return (
    <Box lineHeight="short" maxWidth="64">
      <Text fontSize="sm" fontWeight="medium" truncate title={`${reference.dag_id} ${reference.run_id}`}>
        <AppLink to={airflowTaskPath(reference)}>{shortRun(reference.run_id)}</AppLink>
        {reference.kind === "skew" && " · served"}
      </Text>
      <Text fontSize="xs" color="fg.muted" truncate title={days && "Time range of the rows"}>
        {days ?? reference.dag_id}
        {listing && (
          <>
            {" · "}
            <Time at={listing.created_at} />
          </>
        )}
      </Text>
    </Box>
  );
}

interface ChipProps {
  name: string;
  rows: number;
  shown: Shown | undefined;
  full: boolean;
  last: boolean;
  onClick: () => void;
}

function Chip({ name, rows, shown, full, last, onClick }: ChipProps) {
  return (
    <Button
      size="xs"
      variant="outline"
      colorPalette={shown ? datasetPalette(shown.index) : "gray"}
      borderColor={shown ? INK : undefined}
      bg={shown ? "colorPalette.subtle" : undefined}
      color={shown ? "fg" : "fg.muted"}
      aria-pressed={shown !== undefined}
      disabled={shown ? last : full}
      onClick={onClick}
      title={plural(rows, "row")}
    >
      {shown && <Swatch index={shown.index} />}
      {name}
      <Text as="span" fontWeight="normal">
        {formatCount(rows)}
      </Text>
    </Button>
  );
}

interface SlicesProps {
  dataset: Listing["datasets"][number];
  taken: readonly Shown[];
  full: boolean;
  onToggle: (slice: string) => void;
}

function Slices({ dataset, taken, full, onToggle }: SlicesProps) {
  return (
    <CheckMenu
      trigger={
        <Button size="xs" variant="ghost" colorPalette="gray" px={1.5} aria-label={`Slices of ${dataset.name}`}>
          {plural(Object.keys(dataset.slices).length, "slice")} <LuChevronDown />
        </Button>
      }
      items={Object.entries(dataset.slices).map(([value, rows]) => {
        const checked = taken.some(({ slice }) => slice === value);
        return { value, count: formatCount(rows), checked, disabled: full && !checked };
      })}
      onCheck={onToggle}
    >
      {dataset.slices_left_out > 0 && (
        <Text px={2} py={1} fontSize="xs" color="fg.muted">
          and {plural(dataset.slices_left_out, "smaller slice")} without figures here
        </Text>
      )}
    </CheckMenu>
  );
}
