import { Field, HStack, NumberInput } from "@chakra-ui/react";
import { useState } from "react";
import { Amount, ConfirmDialog } from "src/components";
import { Consequences } from "src/pages/Models/Consequences";
import { type DecisionProps, useDecision } from "src/pages/Models/useDecision";

/** Shares of champion and challenger. */
export function TrafficDialog({ dagId, detail, onClose }: DecisionProps) {
  const { champion, challenger, rollout } = detail;
  const [percent, setPercent] = useState(challenger?.traffic_percent ?? 0);
  const { setTraffic } = useDecision(dagId, detail.name);
  if (!champion || !challenger) {
    return null;
  }
  const shares = [
    { version: champion.version, percent: 100 - percent },
    { version: challenger.version, percent },
  ];
  const percents = Object.fromEntries(shares.map((share) => [String(share.version), share.percent]));
  const set = (value: number) => Number.isFinite(value) && setPercent(Math.min(100, Math.max(0, Math.round(value))));
  return (
    <ConfirmDialog
      title={`Set the traffic of ${detail.name}?`}
      confirmLabel="Set traffic"
      onConfirm={(reason) => setTraffic(percents, reason)}
      onClose={onClose}
    >
      <Field.Root>
        <Field.Label>Share of version {challenger.version}, the challenger, in percent</Field.Label>
        <HStack width="full" gap={4}>
          <Amount flex={1} min={0} max={100} label="Share of the challenger" value={percent} onChange={set} />
          <NumberInput.Root
            size="sm"
            width="20"
            min={0}
            max={100}
            value={String(percent)}
            onValueChange={({ valueAsNumber }) => set(valueAsNumber)}
          >
            <NumberInput.Control />
            <NumberInput.Input />
          </NumberInput.Root>
        </HStack>
      </Field.Root>
      <Consequences
        detail={detail}
        after={shares}
        words={[
          `Of the requests that name no version, ${100 - percent}% go to version ${champion.version}, the champion, and ${percent}% to version ${challenger.version}.`,
          percent === 100 && "The champion stays the champion: to replace it, promote the challenger.",
          rollout &&
            `Version ${rollout.version} is being rolled out (step ${rollout.number} of ${rollout.steps}): the rollout goes on from this share, as a step of its own.`,
        ]}
      />
    </ConfirmDialog>
  );
}
