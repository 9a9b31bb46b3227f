import { Box, HStack, Stack, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { QueryView } from "src/components/QueryView";
import { Endpoint } from "src/pages/Models/Endpoint";
import { ModelHeader } from "src/pages/Models/ModelHeader";
import { useModel } from "src/pages/Models/queries";
import { Headline } from "src/pages/Pipelines/ModelCell";
import { modelsPath } from "src/routes";

/** What serves of a model, how good it was when it was evaluated, and how it does now. */
export function ChampionSection({
  dagId,
  model,
  metric,
}: {
  dagId: string;
  model: string;
  metric: Schemas["HeadlineMetric"] | null;
}) {
  const detail = useModel(dagId, model);
  return (
    <Box as="section" aria-label={`Model ${model}`}>
      <QueryView query={detail}>
        {(found) =>
          found.champion === null && found.decisions.length === 0 ? (
            <Text color="fg.muted" fontSize="sm">
              No version of <AppLink to={modelsPath(dagId, { model })}>{model}</AppLink> serves yet: the first run that
              reaches its deployment registers version 1.
            </Text>
          ) : (
            <Stack gap={3}>
              <HStack gap={3} fontSize="sm">
                <AppLink to={modelsPath(dagId, { model })} fontWeight="semibold" fontSize="md">
                  {model}
                </AppLink>
                {metric && <Headline metric={metric} />}
              </HStack>
              <ModelHeader dagId={dagId} detail={found} />
              {found.champion && <Endpoint dagId={dagId} detail={found} />}
            </Stack>
          )
        }
      </QueryView>
    </Box>
  );
}
