import { HStack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { ActionButton, AppLink, OwnersDialog as Dialog } from "src/components";
import { impossible } from "src/pages/Models/impossible";
import { PromoteDialog } from "src/pages/Models/PromoteDialog";
import { liveOptions, type ModelDetail, useMinutes } from "src/pages/Models/queries";
import { ReplaceDialog } from "src/pages/Models/ReplaceDialog";
import { RollBackDialog } from "src/pages/Models/RollBackDialog";
import { TrafficDialog } from "src/pages/Models/TrafficDialog";
import { type DecisionProps, useDecision } from "src/pages/Models/useDecision";
import { modelsPath } from "src/routes";

const ACTIONS = [
  { name: "promote", label: "Promote", Dialog: PromoteDialog },
  { name: "traffic", label: "Set traffic", Dialog: TrafficDialog },
  { name: "rollBack", label: "Roll back", Dialog: RollBackDialog },
  { name: "replace", label: "Replace champion", Dialog: ReplaceDialog },
  { name: "owners", label: "Change owners", Dialog: OwnersDialog },
] as const;

/** What may be decided about a model, by those who may start the pipeline's runs. What cannot be done now says why. */
export function Actions({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [open, setOpen] = useState<string | null>(null);
  const [minutes] = useMinutes();
  const isAway = useQuery(liveOptions(dagId, detail.name, minutes)).data?.problem != null;
  const [owner] = detail.owners;
  if (!detail.may_change && owner !== undefined && !detail.owners.includes(dagId)) {
    return (
      <Text fontSize="sm" color="fg.muted">
        {detail.name} belongs to <AppLink to={modelsPath(owner, { model: detail.name })}>{owner}</AppLink>: decide
        there.
      </Text>
    );
  }
  if (!detail.may_change) {
    return (
      <Text fontSize="sm" color="fg.muted">
        To change which version serves, you need permission to trigger a DAG that owns and deploys the model.
      </Text>
    );
  }
  return (
    <HStack gap={2} wrap="wrap">
      {ACTIONS.map(({ name, label, Dialog }) => (
        <span key={name}>
          <ActionButton size="xs" impossible={impossible(name, detail, isAway)} onClick={() => setOpen(name)}>
            {label}
          </ActionButton>
          {open === name && <Dialog dagId={dagId} detail={detail} isAway={isAway} onClose={() => setOpen(null)} />}
        </span>
      ))}
    </HStack>
  );
}

/** The DAGs that may deploy the model and decide on it. */
function OwnersDialog({ dagId, detail, onClose }: DecisionProps) {
  const { setOwners } = useDecision(dagId, detail.name);
  return (
    <Dialog
      name={detail.name}
      owners={detail.owners}
      right={`deploy ${detail.name} and decide which version serves`}
      onChange={setOwners}
      onClose={onClose}
    />
  );
}
