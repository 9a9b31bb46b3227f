import { Box, Button, chakra, HStack, Text } from "@chakra-ui/react";
import { type KeyboardEvent, useMemo, useState } from "react";
import type { IconType } from "react-icons";
import { LuActivity, LuBan, LuCheck, LuCircleHelp, LuTriangleAlert, LuX } from "react-icons/lu";
import { formatTime, plural } from "src/format";
import { useTimezone } from "src/host";
import type { ValidationEntry } from "src/pages/Schema/queries";
import { formatArtifact, isSameTask } from "src/routes";

const FEW = 8;
const CELL = 26;

type State = "waiting" | "running" | "error" | "warning" | "ok" | "gone";

const STATES: Record<State, { palette: string; icon: IconType; word: string }> = {
  waiting: { palette: "awaiting_input", icon: LuCircleHelp, word: "waits for a decision" },
  running: { palette: "running", icon: LuActivity, word: "runs" },
  error: { palette: "failed", icon: LuX, word: "errors" },
  warning: { palette: "warning", icon: LuTriangleAlert, word: "warnings" },
  ok: { palette: "success", icon: LuCheck, word: "no anomalies" },
  gone: { palette: "gray", icon: LuBan, word: "no result" },
};

function stateOf({ question, errors, warnings, features_total: features, task_state }: ValidationEntry): State {
  if (question?.state === "waiting") {
    return "waiting";
  }
  if (errors === null) {
    return task_state === "running" || task_state === "queued" ? "running" : "gone";
  }
  return errors ? "error" : warnings || features ? "warning" : "ok";
}

interface TimelineProps {
  validations: readonly ValidationEntry[];
  opened: ValidationEntry | undefined;
  onOpen: (validation: ValidationEntry) => void;
}

/** Which runs had which anomalies: a column a validation, the oldest left; a row a feature, the most often found first. */
export function Timeline({ validations, opened, onOpen }: TimelineProps) {
  const zone = useTimezone();
  const [all, setAll] = useState(false);
  const columns = useMemo(() => [...validations].reverse(), [validations]);
  const features = useMemo(() => rank(validations), [validations]);
  const shown = all ? features : features.slice(0, FEW);
  // Of a validation that found very many, the first are named.
  const total = Math.max(features.length, ...validations.map(({ features_total }) => features_total));
  const [first, last] = [columns[0], columns.at(-1)];
  const onKeyDown = (event: KeyboardEvent<HTMLElement>) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const at = columns.findIndex((each) => opened && isSameTask(each.address, opened.address));
    const next = step === undefined ? undefined : columns[at + step];
    if (next) {
      event.preventDefault();
      onOpen(next);
      const key = formatArtifact(next.address);
      const root = event.currentTarget;
      requestAnimationFrame(() => root.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"]`)?.focus());
    }
  };
  return (
    <Box>
      <Box overflowX="auto" pt={1} onKeyDown={onKeyDown}>
        <chakra.table aria-label="Anomalies across runs" css={{ borderCollapse: "separate", borderSpacing: "2px" }}>
          <thead>
            <tr>
              <Heading>Validation</Heading>
              {columns.map((each) => {
                const isOpen = opened !== undefined && isSameTask(each.address, opened.address);
                const { palette, icon: Icon, word } = STATES[stateOf(each)];
                const told = `${formatTime(each.run_after, zone)}, run ${each.address.run_id}: ${word}`;
                return (
                  <th key={formatArtifact(each.address)} aria-current={isOpen || undefined}>
                    <chakra.button
                      type="button"
                      data-key={formatArtifact(each.address)}
                      tabIndex={isOpen || (!opened && each === last) ? 0 : -1}
                      aria-label={told}
                      title={told}
                      onClick={() => onOpen(each)}
                      colorPalette={palette}
                      bg="colorPalette.solid"
                      color="colorPalette.contrast"
                      width={`${CELL}px`}
                      height={`${CELL}px`}
                      borderRadius="sm"
                      display="flex"
                      alignItems="center"
                      justifyContent="center"
                      cursor="pointer"
                      outline={isOpen ? "2px solid" : undefined}
                      outlineColor="fg"
                      outlineOffset="1px"
                      _focusVisible={{ outline: "2px solid", outlineColor: "brand.focusRing" }}
                    >
                      <Icon aria-hidden />
                    </chakra.button>
                  </th>
                );
              })}
            </tr>
          </thead>
          <tbody>
            {shown.map((feature) => (
              <tr key={feature}>
                <Heading>{feature || "the data set"}</Heading>
                {columns.map((each) => (
                  <Cell key={formatArtifact(each.address)} validation={each} feature={feature} opened={opened} />
                ))}
              </tr>
            ))}
          </tbody>
        </chakra.table>
      </Box>
      <HStack mt={1} gap={4} fontSize="xs" color="fg.muted" wrap="wrap">
        {first && last && (
          <Text>
            {columns.length > 1
              ? `${plural(columns.length, "validation")}, ${formatTime(first.run_after, zone)} to ${formatTime(last.run_after, zone)}`
              : `One validation, ${formatTime(first.run_after, zone)}`}
          </Text>
        )}
        {(["error", "warning"] as const).map((severity) => (
          <HStack key={severity} gap={1}>
            <Mark severity={severity} />
            {severity}
          </HStack>
        ))}
        {features.length > FEW && (
          <Button size="2xs" variant="ghost" onClick={() => setAll(!all)}>
            {all
              ? `The ${FEW} most frequent`
              : total > features.length
                ? `${features.length} of the ${plural(total, "feature")}`
                : `All ${features.length} features`}
          </Button>
        )}
      </HStack>
    </Box>
  );
}

/** Names of the anomalous features, those of most validations first, errors before warnings. */
function rank(validations: readonly ValidationEntry[]): string[] {
  const scores = new Map<string, number>();
  for (const { features } of validations) {
    for (const { feature, severity } of features) {
      scores.set(feature, (scores.get(feature) ?? 0) + (severity === "error" ? 1.01 : 1));
    }
  }
  return [...scores].sort(([, one], [, other]) => other - one).map(([feature]) => feature);
}

function Heading({ children }: { children: string }) {
  return (
    <chakra.th
      scope="row"
      textAlign="start"
      fontWeight="normal"
      fontSize="sm"
      color="fg.muted"
      maxWidth="60"
      minWidth="40"
      overflow="hidden"
      textOverflow="ellipsis"
      whiteSpace="nowrap"
      title={children}
      position="sticky"
      left={0}
      bg="bg"
      paddingEnd={3}
    >
      {children}
    </chakra.th>
  );
}

interface CellProps {
  validation: ValidationEntry;
  feature: string;
  opened: ValidationEntry | undefined;
}

function Cell({ validation, feature, opened }: CellProps) {
  const found = validation.features.find((each) => each.feature === feature);
  const isOpen = opened !== undefined && isSameTask(validation.address, opened.address);
  return (
    <chakra.td
      bg={isOpen ? "brand.muted" : "bg.muted"}
      borderRadius="sm"
      width={`${CELL}px`}
      height={`${CELL - 4}px`}
      textAlign="center"
      title={found && `${found.severity} in ${found.splits.join(", ")}: ${found.summaries.join("; ")}`}
    >
      {found && <Mark severity={found.severity} />}
    </chakra.td>
  );
}

function Mark({ severity }: { severity: "error" | "warning" }) {
  const { palette, icon: Icon } = STATES[severity];
  return (
    <chakra.span colorPalette={palette} color="colorPalette.solid" display="inline-flex" verticalAlign="middle">
      <Icon aria-label={severity} size={14} />
    </chakra.span>
  );
}
