// What lines.py does, for js-libp2p.

import { createInterface } from 'node:readline'

const say = what => process.stdout.write(JSON.stringify(what) + '\n')

// Until stdin ends; the node and its process end then.
export async function obey (node, hello, commands) {
  say(hello)
  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line)
    try {
      say({ done: await commands[asked.do](asked) ?? null })
    } catch (error) {
      say({ failed: String(error?.stack ?? error) })
    }
  }
  await node.stop()
  process.exit(0)
}
