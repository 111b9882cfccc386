// js-libp2p with its kad-dht, driven by the lines that lines.py describes.

import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify } from '@libp2p/identify'
import { kadDHT, passthroughMapper } from '@libp2p/kad-dht'
import { peerIdFromString } from '@libp2p/peer-id'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'
import { CID } from 'multiformats/cid'
import * as Digest from 'multiformats/hashes/digest'
import { obey } from './lines.mjs'

const CALL_MS = 15_000

// As in plain_node.py.
function validateText (name, value) {
  new TextDecoder('utf-8', { fatal: true }).decode(value)
}

function selectText (name, values) {
  return values.indexOf([...values].sort(Buffer.compare).at(-1))
}

const node = await createLibp2p({
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: {
    identify: identify(),
    ping: ping(),
    dht: kadDHT({
      protocol: '/ipfs/kad/1.0.0',
      clientMode: false,
      // It leaves out private addresses otherwise, and with them the loopback interface.
      peerInfoMapper: passthroughMapper,
      // A query waits for the first lookup of its own key; there is none to wait for when alone.
      allowQueryWithZeroPeers: true,
      initialQuerySelfInterval: 50,
      validators: { text: validateText },
      selectors: { text: selectText }
    })
  }
})

const bytes = hex => Uint8Array.from(Buffer.from(hex, 'hex'))
const hex = bytes => Buffer.from(bytes).toString('hex')
const content = name => CID.createV1(0x55, Digest.decode(bytes(name)))
const contact = ({ id, multiaddrs }) => ({
  peer: id.toString(),
  addresses: multiaddrs.map(address => address.toString().split('/p2p/')[0])
})
const signal = () => AbortSignal.timeout(CALL_MS)

const commands = {
  async connect ({ peer, addresses }) {
    await node.dial(addresses.map(address => multiaddr(`${address}/p2p/${peer}`)), { signal: signal() })
  },

  async closest ({ peer }) {
    const name = peerIdFromString(peer).toMultihash().bytes
    const closest = []
    for await (const found of node.peerRouting.getClosestPeers(name, { signal: signal() })) {
      closest.push(found.id.toString())
    }
    return closest
  },

  async provide ({ name }) {
    await node.contentRouting.provide(content(name), { signal: signal() })
  },

  async find_providers ({ name }) {
    const found = []
    for await (const provider of node.contentRouting.findProviders(content(name), { signal: signal() })) {
      found.push(contact(provider))
    }
    return found
  },

  async put_value ({ name, value }) {
    await node.contentRouting.put(bytes(name), bytes(value), { signal: signal() })
  },

  async get_value ({ name }) {
    return hex(await node.contentRouting.get(bytes(name), { signal: signal() }))
  }
}

await obey(node, contact({ id: node.peerId, multiaddrs: node.getMultiaddrs() }), commands)
