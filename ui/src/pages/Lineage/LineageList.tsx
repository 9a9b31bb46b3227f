import { Box, chakra, Heading, HStack, Stack, Text } from "@chakra-ui/react";
import { AppLink, CopyButton } from "src/components";
import { shortRun } from "src/format";
import { type Branch, type Lineage, treeOf } from "src/pages/Lineage/graph";
import { kindOf, summaryOf } from "src/pages/Lineage/kinds";
import { ServedBadge } from "src/pages/Lineage/ServedBadge";
import { airflowTaskPath, lineagePath } from "src/routes";

/** The lineage as nested lists, to be read aloud and copied. */
export function LineageList({ lineage }: { lineage: Lineage }) {
  const back = treeOf(lineage, true);
  const onward = treeOf(lineage, false);
  const text = [
    "Made from",
    ...(back ? textOf(back, 0) : []),
    "",
    "Used to make",
    ...(onward?.branches ?? []).flatMap((each) => textOf(each, 0)),
  ].join("\n");
  return (
    <Stack gap={4} borderWidth={1} borderRadius="md" p={4} fontSize="sm">
      <HStack justify="space-between">
        <Heading as="h2" size="sm">
          Made from
        </Heading>
        <CopyButton text={text} label="Copy as text" />
      </HStack>
      {back && (
        <chakra.ul listStyleType="none">
          <Item branch={back} />
        </chakra.ul>
      )}
      <Heading as="h2" size="sm">
        Used to make
      </Heading>
      {onward && onward.branches.length > 0 ? (
        <chakra.ul listStyleType="none">
          {onward.branches.map((branch) => (
            <Item key={branch.node.id} branch={branch} />
          ))}
        </chakra.ul>
      ) : (
        <Text color="fg.muted">Nothing yet.</Text>
      )}
    </Stack>
  );
}

function Item({ branch }: { branch: Branch }) {
  const { node, role, isRepeated, branches } = branch;
  const kind = kindOf(node);
  return (
    <chakra.li colorPalette={kind.palette} py={0.5}>
      <HStack gap={2} wrap="wrap">
        <Box as={kind.icon} color="colorPalette.fg" aria-hidden />
        {node.address && node.state === "present" ? (
          <AppLink to={lineagePath(node.address.dag_id, { artifact: node.address })} fontWeight="medium">
            {kind.label}
          </AppLink>
        ) : (
          <Text fontWeight="medium">{kind.label}</Text>
        )}
        {role && role !== node.kind && <Text color="fg.muted">as {role}</Text>}
        {node.served.map((mark) => (
          <ServedBadge key={`${mark.model} ${mark.version}`} mark={mark} />
        ))}
        <Text color="fg.muted">{summaryOf(node)}</Text>
        {node.address && (
          <AppLink
            to={airflowTaskPath(node.address)}
            color="fg.muted"
            minWidth={0}
            overflowWrap="anywhere"
            title={node.address.run_id}
          >
            {node.address.task_id} · {shortRun(node.address.run_id)}
          </AppLink>
        )}
        {node.cached && <Text color="fg.muted">made by an earlier run</Text>}
        {isRepeated && branches.length === 0 && <Text color="fg.muted">as above</Text>}
      </HStack>
      {branches.length > 0 && (
        <chakra.ul listStyleType="none" ps={{ base: 2, md: 5 }} borderInlineStartWidth={1} ms={{ base: 0.5, md: 1.5 }}>
          {branches.map((each) => (
            <Item key={`${each.node.id} ${each.role}`} branch={each} />
          ))}
        </chakra.ul>
      )}
    </chakra.li>
  );
}

function textOf({ node, role, isRepeated, branches }: Branch, depth: number): string[] {
  const { address } = node;
  const who = address ? ` (${address.dag_id}, ${address.task_id}, ${address.run_id})` : "";
  const mark = node.fingerprint ? ` ${node.fingerprint.slice(0, 12)}` : "";
  const line = `${"  ".repeat(depth)}- ${node.kind}${mark}${role && role !== node.kind ? ` as ${role}` : ""}: ${summaryOf(node)}${who}${isRepeated ? ", as above" : ""}`;
  return [line, ...branches.flatMap((each) => textOf(each, depth + 1))];
}
