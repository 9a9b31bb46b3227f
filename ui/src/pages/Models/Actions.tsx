import { HStack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { LuArrowUpToLine, LuReplace, LuSplit, LuUndo2, LuUsers } from "react-icons/lu";
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
  { name: "promote", label: "Promote", icon: LuArrowUpToLine, Dialog: PromoteDialog },
  { name: "traffic", label: "Set traffic", icon: LuSplit, Dialog: TrafficDialog },
  { name: "rollBack", label: "Roll back", icon: LuUndo2, Dialog: RollBackDialog },
  { name: "replace", label: "Replace champion", icon: LuReplace, Dialog: ReplaceDialog },
  { name: "owners", label: "Change owners", icon: LuUsers, Dialog: OwnersDialog },
] as const;

/** What may be decided about a model, by those who may start the pipeline's runs. What cannot be done now says why. */
export function Actions({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [open, setOpen] = useState<string | null>(null);
  const [minutes] = useMinutes();
  const live = useQuery(liveOptions(dagId, detail.name, minutes));
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
      {ACTIONS.map(({ name, label, icon: Icon, Dialog }) => (
        <span key={name}>
          <ActionButton
            size="xs"
            impossible={impossible(name, detail, live.data?.problem != null)}
            onClick={() => setOpen(name)}
          >
            <Icon />
            {label}
          </ActionButton>
          {open === name && <Dialog dagId={dagId} detail={detail} onClose={() => setOpen(null)} />}
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
